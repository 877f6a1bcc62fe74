"""Parts of the typed configuration; use `marl_framework.config` and `config_io`."""
