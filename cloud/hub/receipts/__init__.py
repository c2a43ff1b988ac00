"""Landing receipts at the hub: signed statements about the messages of a gateway that are in the lake."""
