"""From a name to a model's file: the manifest, the hub and wheels, and drafts for a target."""
