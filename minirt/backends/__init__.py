"""What computes a forward: NativeBackend with torch, SimulatedBackend with the roofline model."""
