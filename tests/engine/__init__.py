"""The engine on small models, and the binding against libllama."""
