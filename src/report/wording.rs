//! Numbers as a page writes them.

use maud::{Markup, html};

use crate::evaluate::{Interval, time};

/// `62 % [58, 66] fewer`, `5 % [−1, 9] more`: the sign is the word, of the ends too.
pub(super) fn fewer_or_more(share: &Interval) -> String {
    let hundredths = |value: f64| (value * 100.0).round() + 0.0;
    if [Some(share.mean), share.low, share.high].into_iter().flatten().all(|value| hundredths(value) == 0.0) {
        return "as many".to_owned();
    }
    let (sign, word) = if hundredths(share.mean) < 0.0 { (-1.0, "more") } else { (1.0, "fewer") };
    let (low, high) = if sign < 0.0 { (share.high, share.low) } else { (share.low, share.high) };
    let number = |value: f64| minus(&format!("{}", hundredths(value * sign)));
    let ends = low.zip(high).map(|(low, high)| format!(" [{}, {}]", number(low), number(high)));
    format!("{} %{} {word}", number(share.mean), ends.unwrap_or_default())
}

/// `62 % [58, 66] fewer violations than default`, `as many violations as default`.
pub(super) fn violations_than(share: &Interval, than: &str) -> String {
    let count = fewer_or_more(share);
    let word = if count == "as many" { "as" } else { "than" };
    format!("{count} violations {word} {than}")
}

/// `94.6 [93.1, 95.9]`, in hundredths if `scale` is 100.
pub(super) fn spread(interval: &Interval, scale: f64, digits: usize) -> Markup {
    let number = |value: f64| unsigned_zero(&format!("{:.digits$}", value * scale));
    bracketed(interval, number)
}

/// `+1.2 [−0.3, 2.5]`, in percentage points.
pub(super) fn gain(interval: &Interval) -> Markup {
    let number = |value: f64| unsigned_zero(&format!("{:.1}", value * 100.0));
    let plus = if interval.mean > 0.0 && number(interval.mean) != "0.0" { "+" } else { "" };
    html! { (plus) (bracketed(interval, number)) }
}

fn bracketed(interval: &Interval, number: impl Fn(f64) -> String) -> Markup {
    let ends = interval.low.zip(interval.high);
    let ends =
        ends.map_or_else(|| "no interval".to_owned(), |(low, high)| format!("{}, {}", number(low), number(high)));
    html! { (number(interval.mean)) " " small.ends { "[" (ends) "]" } }
}

/// What rounds to zero has no sign.
fn unsigned_zero(text: &str) -> String {
    let bare = text.trim_start_matches('-');
    if bare.parse() == Ok(0.0) { bare.to_owned() } else { minus(text) }
}

/// With a minus sign in place of a hyphen.
pub(super) fn minus(number: &str) -> String {
    number.strip_prefix('-').map_or_else(|| number.to_owned(), |bare| format!("−{bare}"))
}

/// A space at which no line ends.
const TIGHT: char = '\u{a0}';

/// `1.5 s`.
pub(super) fn seconds(ms: Option<f64>) -> String {
    time(ms, |ms| format!("{:.1}{TIGHT}s", ms / 1e3))
}

/// `0.62 s`: a mean is a small number of them.
pub(super) fn seconds_of_mean(ms: Option<f64>) -> String {
    time(ms, |ms| format!("{:.2}{TIGHT}s", ms / 1e3))
}

/// `28.4 ms`.
pub(super) fn milliseconds_of_mean(ms: Option<f64>) -> String {
    time(ms, |ms| format!("{ms:.1}{TIGHT}ms"))
}

/// `230 ms`.
pub(super) fn milliseconds(ms: Option<f64>) -> String {
    time(ms, |ms| format!("{ms:.0}{TIGHT}ms"))
}

/// `93.7 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}{TIGHT}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mean: f64, low: f64, high: f64) -> Interval {
        Interval { low: Some(low), high: Some(high), ..Interval::single(mean) }
    }

    #[test]
    fn a_loss_is_not_called_a_gain() {
        let share = |mean, low, high| fewer_or_more(&of(mean, low, high));
        assert_eq!(share(0.62, 0.58, 0.66), "62 % [58, 66] fewer");
        assert_eq!(share(-0.05, -0.09, 0.01), "5 % [−1, 9] more");
        assert_eq!(share(-4.92, -6.0, -3.0), "492 % [300, 600] more");
        assert_eq!(share(-0.004, -0.09, 0.01), "0 % [−9, 1] fewer");
        assert_eq!(fewer_or_more(&Interval::single(-0.5)), "50 % more");
        assert_eq!(violations_than(&Interval::single(0.5), "default"), "50 % fewer violations than default");
        assert_eq!(violations_than(&of(-0.004, -0.002, 0.003), "default"), "as many violations as default");
    }

    #[test]
    fn a_spread_has_its_digits_and_no_negative_zero() {
        assert_eq!(
            spread(&of(0.123, -0.0004, 0.2), 100.0, 1).into_string(),
            "12.3 <small class=\"ends\">[0.0, 20.0]</small>"
        );
        assert_eq!(
            spread(&Interval::single(-0.5), 100.0, 0).into_string(),
            "−50 <small class=\"ends\">[no interval]</small>"
        );
        assert_eq!(gain(&of(0.123, -0.2, 0.2)).into_string(), "+12.3 <small class=\"ends\">[−20.0, 20.0]</small>");
        assert_eq!(gain(&Interval::single(0.0004)).into_string(), "0.0 <small class=\"ends\">[no interval]</small>");
    }
}
