"""First boot of a gateway from a card: apply the card's file once, and report the result."""
