"""What the hub wants this gateway to be configured with: verified, put on trial, confirmed or rolled back."""
