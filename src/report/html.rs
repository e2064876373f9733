//! Text within HTML.

use std::fmt;

/// `text` as HTML shows it, in elements and in quoted attributes. Control characters become U+FFFD.
pub(super) fn escape(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let mut html = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            letter if letter.is_control() && letter != '\n' => html.push('\u{fffd}'),
            letter => html.push(letter),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_gets_out_of_its_element() {
        assert_eq!(
            escape("</td><script>alert('x')</script>\""),
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;"
        );
        assert_eq!(escape("&lt;\u{0}\u{1b}\n☺"), "&amp;lt;\u{fffd}\u{fffd}\n☺");
    }
}
