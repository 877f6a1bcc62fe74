"""Which settings make a team learn well."""
