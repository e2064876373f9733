//! Pages of one study: what it is about, what is found, its sections, what was run.

use maud::{DOCTYPE, Markup, html};

use super::page::head;
use crate::plot::svg::Words;

/// What stands around the sections of a page.
pub(crate) struct Sheet<'a> {
    /// What it is about.
    pub(crate) heading: &'a str,
    /// What is found, a paragraph each.
    pub(crate) claims: &'a [String],
    /// The subcommand that made it, such as `evict replay`.
    pub(crate) subcommand: &'a str,
    /// All of the command.
    pub(crate) command: &'a str,
    /// The day.
    pub(crate) made_on: &'a str,
}

impl Sheet<'_> {
    /// The page over its sections.
    pub(crate) fn over(&self, sections: &Markup) -> String {
        let Sheet { heading, claims, subcommand, command, made_on } = *self;
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&html! { (Words(heading)) ", " (made_on) }))
                "\n"
                body {
                    header {
                        h1 { (Words(heading)) }
                        p.made { "Made on " time datetime=(made_on) { (made_on) } " by " code { "kvtide " (subcommand) } "." }
                        @for claim in claims { p.claim { (Words(claim)) } }
                    }
                    "\n"
                    main {
                        (sections)
                        section id="run" {
                            h2 { "What was run" }
                            pre { (Words(command)) }
                        }
                    }
                }
            }
        };
        markup.into_string() + "\n"
    }
}
