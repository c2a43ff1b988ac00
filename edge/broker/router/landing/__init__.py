"""Landing receipts at a gateway: a device gets a signed receipt for a message once a hub has it in the lake."""
