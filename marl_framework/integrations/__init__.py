"""Missions as environments of other libraries; each library has its own module and extra."""
