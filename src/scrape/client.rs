//! Asking a server for its counters, by plain HTTP.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Longest answer taken: a server with every metric there is has a few hundred kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// Redirections followed.
const MAX_REDIRECTS: u32 = 2;

/// Where a server has its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    url: String,
}

/// What is wrong with an address or an answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SourceError {
    /// Not plain HTTP.
    #[error(
        "https is not spoken here: ask from where the server runs (http://localhost:8000/metrics), or through a tunnel \
         (ssh -L 8000:localhost:8000 HOST)"
    )]
    Https,
    /// Another scheme, or none of a server.
    #[error("is no address of a server: expected http://HOST:PORT, or HOST:PORT")]
    Address,
    /// With a password.
    #[error("a name and password in an address would end up in files and logs: ask where none is needed")]
    Credentials,
    /// No answer, or a refusal.
    #[error("{0}")]
    Answer(String),
    /// An answer that is not text.
    #[error("the answer is not UTF-8")]
    NotText,
    /// An answer that stops within a line.
    #[error("the answer is cut off: its last line does not end")]
    CutOff,
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let text = text.trim();
        let rest = match text.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => return Err(SourceError::Https),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(SourceError::Address),
            None => text,
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.contains('@') {
            return Err(SourceError::Credentials);
        }
        if host.is_empty() || host.starts_with(':') || rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(SourceError::Address);
        }
        let path = if path.trim_end_matches('/').is_empty() { "/metrics" } else { path };
        Ok(Source { url: format!("http://{host}{path}") })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Source {
    /// The counters as the server has them now.
    ///
    /// # Errors
    /// There is no answer in time, it is too long, not text, or cut off.
    pub fn fetch(&self, timeout: Duration) -> Result<String, SourceError> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(MAX_REDIRECTS)
            .proxy(None)
            .max_idle_connections(0)
            .user_agent(concat!("kvtide/", env!("CARGO_PKG_VERSION")))
            .build();
        let failed = |error: ureq::Error| SourceError::Answer(error.to_string());
        let mut response = config.new_agent().get(&self.url).call().map_err(failed)?;
        let bytes = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec().map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| SourceError::NotText)?;
        if text.ends_with('\n') { Ok(text) } else { Err(SourceError::CutOff) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_or_refused() {
        let said =
            |text: &str| text.parse::<Source>().map(|source| source.to_string()).map_err(|error| error.to_string());
        for (given, meant) in [
            ("localhost:8000", "http://localhost:8000/metrics"),
            ("http://node-1:8000/", "http://node-1:8000/metrics"),
            ("HTTP://node-1:8000/metrics/all", "http://node-1:8000/metrics/all"),
            ("[::1]:9400", "http://[::1]:9400/metrics"),
        ] {
            assert_eq!(said(given), Ok(meant.to_owned()));
        }
        assert!(said("https://node-1/metrics").unwrap_err().contains("ssh -L 8000:localhost:8000 HOST"));
        assert!(said("http://me:secret@node-1/").unwrap_err().contains("password"));
        for none in ["", "http://", "ftp://node-1", "http:///metrics", "node 1", ":8000"] {
            assert_eq!(none.parse::<Source>(), Err(SourceError::Address), "{none}");
        }
    }
}
