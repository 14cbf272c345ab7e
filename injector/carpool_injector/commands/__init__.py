"""The subcommands of `carpool-injector`, a module each; loaded when they are asked for."""
