//! The door from another process: a framed protocol over Unix sockets and TCP.
