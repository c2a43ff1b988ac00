"""`waypost receipt`: verify landing receipts."""
