//! Values as somebody wrote them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A value, and the text it was read from. There is often more than one way to write the same (`chat` is a class of targets,
/// `600` and `10m` are as long): whoever reads an experiment, a checkpoint or a report finds what was written, and a hash of it
/// stays what it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Written<T> {
    value: T,
    text: String,
}

impl<T> Deref for Written<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: FromStr> FromStr for Written<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Written<T>, T::Err> {
        Ok(Written { value: text.parse()?, text: text.to_owned() })
    }
}

/// Written as it writes itself.
impl<T: fmt::Display> From<T> for Written<T> {
    fn from(value: T) -> Written<T> {
        Written { text: value.to_string(), value }
    }
}

impl<T> fmt::Display for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl<T> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

/// Where nothing is written: what is meant then, which is valid.
pub(super) fn by_default<T: FromStr<Err: fmt::Debug>>(text: &str) -> Written<T> {
    text.parse().expect("a default is valid")
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Written<T>, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error: T::Err| {
            let (error, quoted) = (error.to_string(), format!("{text:?}"));
            let is_named = error.contains(&quoted) || error.contains(&format!("`{text}`"));
            de::Error::custom(if is_named { error } else { format!("{quoted}: {error}") })
        })
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::sched::Slo;
    use kvtide_runtime::Host;

    use super::*;

    #[test]
    fn what_is_written_is_kept() {
        let slo: Written<Slo> = serde_json::from_str("\"chat\"").unwrap();
        assert_eq!(*slo, Slo::from_millis(400, 30, 1000));
        assert_eq!((slo.to_string(), serde_json::to_string(&slo).unwrap()), ("chat".to_owned(), "\"chat\"".to_owned()));
        assert_eq!(Written::from(*slo).to_string(), "ttft:400,tpot:30,stall:1000");
    }

    #[test]
    fn mistakes_name_what_was_written() {
        let error = |text: &str| serde_json::from_str::<Written<Host>>(text).unwrap_err().to_string();
        assert!(
            error("\"vllm\"").starts_with("\"vllm\": expected vllm-0.33, sglang-0.5 or kvtide"),
            "{}",
            error("\"vllm\"")
        );
        assert!(error("7").starts_with("invalid type"));
    }
}
