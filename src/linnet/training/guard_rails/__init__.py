"""What keeps a run on its way: loss spikes, memory that runs out, machines and data that make it wait."""
