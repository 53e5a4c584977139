"""Attachments: who may read which blobs, what they are called, and which blobs nobody needs any more."""
