//! What a serving node embeds, from the outside.

mod compiled_in;
mod corpus;
mod editions;
mod golden;
mod guard;
mod host;
mod hostile;
mod hostile_files;
mod properties;
mod python_fixture;
mod retention;
mod support;
mod table;
