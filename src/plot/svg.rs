//! The shapes that pictures of our own are made of, as markup: the charts and the legend of a page, a table's tree.
//!
//! Looks are classes; what they mean is in the style sheet of the page, or of the picture. Everything a user named goes through
//! [`Words`].

use std::fmt::Write;

use maud::{Escaper, Markup, Render, html};

/// Text within elements and quoted attributes of HTML and SVG. What neither can hold becomes U+FFFD, control characters above
/// all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a str);

impl Render for Words<'_> {
    fn render_to(&self, buffer: &mut String) {
        for letter in self.0.chars() {
            let written = match letter {
                // Maud lets it be: its attributes are in double quotes, ours may be read by others.
                '\'' => write!(buffer, "&#39;"),
                '\u{fffe}' | '\u{ffff}' => write!(buffer, "\u{fffd}"),
                letter if letter.is_control() && letter != '\n' => write!(buffer, "\u{fffd}"),
                letter => write!(Escaper::new(buffer), "{letter}"),
            };
            written.expect("a string takes everything");
        }
    }
}

/// Where text stands at its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// Words whose base line goes through `at`.
pub(crate) fn text(class: &str, at: (f64, f64), anchor: Anchor, words: &str) -> Markup {
    html! {
        text class=(class) x=(round(at.0, 1)) y=(round(at.1, 1)) text-anchor=(anchor.name()) { (Words(words)) }
    }
}

/// Words that read upwards, their middle at `at`.
pub(crate) fn upright(class: &str, at: (f64, f64), words: &str) -> Markup {
    let at = format!("{} {}", round(at.0, 1), round(at.1, 1));
    html! {
        text class=(class) transform=(format_args!("translate({at}) rotate(-90)")) text-anchor="middle" { (Words(words)) }
    }
}

/// A path; `d` is SVG's.
pub(crate) fn path(class: &str, d: &str) -> Markup {
    html! { path class=(class) d=(d) {} }
}

/// At most so many digits after the point, and none that is a trailing zero.
pub(crate) fn round(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_element() {
        let escape = |text: &str| Words(text).render().into_string();
        assert_eq!(
            escape("</td><script>alert('x')</script>\""),
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;"
        );
        assert_eq!(escape("&lt;\u{0}\u{1b}\u{ffff}\n☺"), "&amp;lt;\u{fffd}\u{fffd}\u{fffd}\n☺");
        assert_eq!(
            text("a", (1.0, 2.25), Anchor::End, "<").into_string(),
            "<text class=\"a\" x=\"1\" y=\"2.2\" text-anchor=\"end\">&lt;</text>"
        );
    }
}
