"""A stand-in for Django, of which a view needs two classes."""
