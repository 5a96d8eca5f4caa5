//! YAML as a tree with positions. Only what a policy needs: anchors, aliases, tags and directives are refused, so that
//! the tree is never larger than the text.

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Span, StrInput};

use super::error::{Position, Problem};

/// A policy is four levels deep. The limit keeps the recursion below small.
const MAX_DEPTH: usize = 16;

/// One value and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub at: Position,
    pub value: Value,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing: an empty value, `~` or `null`.
    Null,
    Scalar(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub at: Position,
    pub name: String,
}

impl Value {
    /// For "expected this, found that".
    pub const fn describe(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar(_) => "a plain value",
            Self::Sequence(_) => "a list",
            Self::Mapping(_) => "a mapping",
        }
    }
}

/// The one document of the text; `None` if there is none.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Problem> {
    let mut options = Options::default();
    options.strict_indentation = true;
    options.disallow_directives = true;
    let mut reader =
        Reader { events: Parser::new_from_str_with_options(text, options), last: Position { line: 1, column: 1 } };
    let mut document = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
            _ if document.is_some() => {
                return Err(problem(position(span.start), "a second document; a policy is one document"));
            }
            event => document = Some(reader.node(event, span, 0)?),
        }
    }
    Ok(document)
}

struct Reader<'input> {
    events: Parser<'input, StrInput<'input>>,
    last: Position,
}

impl<'input> Reader<'input> {
    fn next(&mut self) -> Result<Option<(Event<'input>, Span)>, Problem> {
        match self.events.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => {
                self.last = position(span.start);
                Ok(Some((event, span)))
            }
            Some(Err(error)) => Err(problem(position(*error.marker()), format!("not YAML: {}", error.info()))),
        }
    }

    /// Within a collection there is a next event, or an error.
    fn inner(&mut self) -> Result<(Event<'input>, Span), Problem> {
        let end = self.last;
        self.next()?.ok_or_else(|| problem(end, "not YAML: the text ends in the middle"))
    }

    fn node(&mut self, event: Event<'input>, span: Span, depth: usize) -> Result<Node, Problem> {
        let at = position(span.start);
        if depth > MAX_DEPTH {
            return Err(problem(at, "nested too deeply for a policy"));
        }
        if event.anchor_id().is_some() || event.alias_id().is_some() {
            return Err(problem(at, "anchors (&) and aliases (*) are not supported; quote the text if it starts so"));
        }
        if event.tag().is_some() {
            return Err(problem(at, "tags (!) are not supported; quote the text if it starts so"));
        }
        let value = match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => Value::Null,
            Event::Scalar(text, ..) => Value::Scalar(text.into_owned()),
            Event::SequenceStart(..) => Value::Sequence(self.sequence(depth)?),
            Event::MappingStart(..) => Value::Mapping(self.mapping(depth)?),
            _ => return Err(problem(at, "not YAML: a value was expected")),
        };
        Ok(Node { at, value })
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Node>, Problem> {
        let mut items = Vec::new();
        loop {
            match self.inner()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Vec<(Key, Node)>, Problem> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = match self.inner()? {
                (Event::MappingEnd, _) => return Ok(entries),
                next => next,
            };
            let Node { at, value } = self.node(event, span, depth + 1)?;
            let Value::Scalar(name) = value else {
                return Err(problem(at, format!("a key must be a name, this is {}", value.describe())));
            };
            let (event, span) = self.inner()?;
            entries.push((Key { at, name }, self.node(event, span, depth + 1)?));
        }
    }
}

/// The words for null in YAML 1.2's core schema (§10.3.2).
fn is_null(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

fn problem(at: Position, message: impl Into<String>) -> Problem {
    Problem { at, message: message.into() }
}
