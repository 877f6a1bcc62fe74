"""Settings that make a team learn well."""
