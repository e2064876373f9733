//! The C interface: its header, and a node written in C.

mod header;
mod node;
