"""Memory: scoped, keyed texts that outlive sessions, each with a version and a history of its changes."""
