//! Policies: how they are written, what they are called in results, and how they are made ready to decide.
//!
//! | file | what is in it |
//! |---|---|
//! | `spec.rs` | [`PolicySpec`]: which policy, read from text and written back |
//! | `name.rs` | [`PolicyName`]: a spec as results name it |
//! | `short.rs` | [`short_names`]: where there is little room |
//! | `subject.rs` | [`Subject`]: what a spec names, loaded, and whether a host could run it |

mod name;
mod short;
mod spec;
mod subject;

pub use name::PolicyName;
pub use short::short_names;
pub use spec::{PolicySpec, SpecError};
pub use subject::Subject;
