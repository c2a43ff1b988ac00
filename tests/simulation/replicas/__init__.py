"""Several hubs on one registry and one lake, in every order of their steps."""
