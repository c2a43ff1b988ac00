"""Reads tables of the lake for the hub's pages, in processes of its own."""
