"""What a person meets: commands, configuration and the TFX pipeline."""
