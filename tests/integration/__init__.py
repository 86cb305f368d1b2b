"""A package because ``deploy`` is one."""
