"""What a namespace's topics hold, for whoever reads them without this library: JSON Schemas, and an AsyncAPI document."""
