"""Updates of devices: what each device has reported about each artefact."""
