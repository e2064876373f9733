//! The day a page is made: provenance, nothing that is computed looks at it.

use std::env;

use jiff::Timestamp;

use super::ReportError;

/// Seconds since 1970 to take instead of the clock's: <https://reproducible-builds.org/specs/source-date-epoch/>.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// `2026-11-22`, in UTC: the day of `SOURCE_DATE_EPOCH` where that is set, so that a page can be made again byte for byte, else
/// of the clock.
///
/// # Errors
/// `SOURCE_DATE_EPOCH` is not a time.
pub fn today() -> Result<String, ReportError> {
    day(env::var_os(EPOCH).map(|given| given.to_string_lossy().into_owned()))
}

fn day(given: Option<String>) -> Result<String, ReportError> {
    let time = match given {
        Some(given) => {
            let seconds = given.trim().parse().ok();
            let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
            time.ok_or(ReportError::Day { variable: EPOCH, value: given })?
        }
        None => now(),
    };
    Ok(time.strftime("%F").to_string())
}

#[expect(clippy::disallowed_methods, reason = "a page says when it was made, and nothing else reads it")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_can_be_given() {
        let given = |text: &str| day(Some(text.to_owned()));
        assert_eq!(given("1700000000").unwrap(), "2023-11-14");
        assert_eq!(given(" 0\n").unwrap(), "1970-01-01");
        for wrong in ["", "today", "1e9", "99999999999999999"] {
            let error = given(wrong).unwrap_err().to_string();
            assert!(error.contains("SOURCE_DATE_EPOCH") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        assert_eq!(day(None).unwrap().len(), "2026-11-22".len());
    }
}
