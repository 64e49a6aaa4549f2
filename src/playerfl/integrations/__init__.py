"""The probe inside other people's trainers. Each file needs its own extra."""
