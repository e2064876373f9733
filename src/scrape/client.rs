//! Asking a server for its counters, by plain HTTP.

use std::fmt;
use std::net::Ipv6Addr;
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
    /// An answer that is packed although nobody asked for that.
    #[error(
        "the answer is compressed ({0}), which was not asked for: ask the server itself, not what stands before it"
    )]
    Compressed(String),
    /// No text at all.
    #[error("the answer is empty")]
    Empty,
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
        let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if host.contains('@') {
            return Err(SourceError::Credentials);
        }
        if !is_host(host) || rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(SourceError::Address);
        }
        let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
        let path = if path.trim_end_matches('/').is_empty() { "/metrics" } else { path };
        Ok(Source { url: format!("http://{host}{path}{query}") })
    }
}

/// Whether it is a name or an address, with a port or without one. A port that is none would silently be 80.
fn is_host(host: &str) -> bool {
    let (name, after) = match host.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        Some((address, after)) if address.parse::<Ipv6Addr>().is_ok() => (address, after),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let has_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
    !name.is_empty() && (after.is_empty() || after.strip_prefix(':').is_some_and(has_port))
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
        let encoding = response.headers().get("content-encoding").and_then(|encoding| encoding.to_str().ok());
        if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(SourceError::Compressed(encoding.to_owned()));
        }
        let bytes = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec().map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| SourceError::NotText)?;
        match text.as_bytes().last() {
            Some(b'\n') => Ok(text),
            Some(_) => Err(SourceError::CutOff),
            None => Err(SourceError::Empty),
        }
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
            ("[::1]", "http://[::1]/metrics"),
            ("node-1:8000?model=a", "http://node-1:8000/metrics?model=a"),
            ("node-1:8000/all?model=a/b", "http://node-1:8000/all?model=a/b"),
        ] {
            assert_eq!(said(given), Ok(meant.to_owned()));
        }
        assert!(said("https://node-1/metrics").unwrap_err().contains("ssh -L 8000:localhost:8000 HOST"));
        assert!(said("http://me:secret@node-1/").unwrap_err().contains("password"));
        for none in [
            "",
            "http://",
            "ftp://node-1",
            "http:///metrics",
            "node 1",
            ":8000",
            "node-1:",
            "node-1:abc",
            "node-1:0",
            "node-1:65536",
            "node-1:+80",
            "http:localhost",
            "::1:8000",
            "[::1",
            "[::1]8000",
            "[node-1]:8000",
            "?x",
        ] {
            assert_eq!(none.parse::<Source>(), Err(SourceError::Address), "{none}");
        }
    }
}
