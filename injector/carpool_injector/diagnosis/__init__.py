"""What may be wrong with an injector in a cluster: facts are gathered once, and checks are functions of them."""
