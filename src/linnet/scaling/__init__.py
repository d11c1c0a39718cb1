"""How the loss goes down with size and text: published laws, laws fitted to runs, and what a budget buys by them."""
