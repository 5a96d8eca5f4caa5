//! Just enough HTTP to read from the agent.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::wait::stretched;

/// The agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(5);

/// GET: the status and the body.
///
/// # Errors
/// If the agent can't be reached, or the answer is no HTTP.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, stretched(TIMEOUT))?;
    stream.set_read_timeout(Some(stretched(TIMEOUT)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let malformed = || io::Error::other(format!("no HTTP answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(malformed)?;
    Ok((status, body.to_owned()))
}

/// One sample of an OpenMetrics text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// With prefix, unit and suffix.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The samples of an OpenMetrics text. Label values with an escaped quote are not expected here.
pub fn samples(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = match line.split_once('}') {
        Some((series, value)) => (series, value),
        None => line.split_once(' ')?,
    };
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
    Some(Sample {
        name: name.to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.trim_end_matches('"').to_owned())).collect(),
        value: value.split_whitespace().next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read() {
        let read = samples("# TYPE a gauge\na 1\nb_total{x=\"0:1\",y=\"z\"} 2.5\n# EOF\n");
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].name.as_str(), read[0].value), ("a", 1.0));
        assert_eq!((read[1].labels["x"].as_str(), read[1].labels["y"].as_str(), read[1].value), ("0:1", "z", 2.5));
    }
}
