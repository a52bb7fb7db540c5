"""What the policy plans: properties, simulation, recorded plans."""
