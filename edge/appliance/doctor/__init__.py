"""`waypost doctor`: what is wrong with this machine and this gateway, and what to do about each thing."""
