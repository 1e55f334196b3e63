//! The transport between nodes: frames over TCP, mutual TLS, several addresses side by side.
