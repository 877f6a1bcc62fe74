"""Parts of the typed configuration; use :mod:`marl_framework.config` and `config_io`."""
