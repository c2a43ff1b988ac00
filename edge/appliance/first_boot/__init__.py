"""The first start of a gateway from a card: what the card's file says is taken up once, and told to whoever looks."""
