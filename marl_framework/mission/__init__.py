"""The simulated world: missions of many UAVs, batched on one device."""
