//! The values read at a scrape, so that a series vanishes with its connection.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::describe::{self, Description};
use super::seconds;
use crate::model::ConnectionId;
use crate::telemetry::status::{ConnectionGauges, ConnectionState};

/// How many connections have series of their own. An ordinary user can make any number of connections in namespaces of
/// their own; a node has tens. Two series of about 100 bytes each make the text of a scrape 400 KiB at the bound.
pub const MAX_CONNECTIONS: usize = 2000;

#[derive(Debug)]
pub struct ConnectionCollector {
    /// By how much needs an eye, most first; at most [`MAX_CONNECTIONS`].
    connections: Vec<ConnectionGauges>,
    states: [(ConnectionState, i64); ConnectionState::ALL.len()],
    omitted: i64,
}

impl ConnectionCollector {
    /// `fs_type` makes a label of a file system type.
    pub fn new(mut connections: Vec<ConnectionGauges>, fs_type: impl Fn(&str) -> String) -> Self {
        let count = |state| connections.iter().filter(|connection| connection.state == state).count();
        let states = ConnectionState::ALL.map(|state| (state, number(count(state))));
        connections.sort_by_key(|connection| {
            std::cmp::Reverse((connection.oldest_request, connection.requests_in_flight, connection.connection))
        });
        // Prometheus refuses a whole scrape for one sample that occurs twice. A device number has one connection at a
        // time, its latest; the one before it may be in the list until its end is noticed.
        let mut latest = HashMap::new();
        for ConnectionId { device, epoch } in connections.iter().map(|connection| connection.connection) {
            let known = latest.entry(device).or_insert(epoch);
            *known = epoch.max(*known);
        }
        connections.retain(|one| latest.get(&one.connection.device) == Some(&one.connection.epoch));
        let omitted = number(connections.len().saturating_sub(MAX_CONNECTIONS));
        connections.truncate(MAX_CONNECTIONS);
        for connection in &mut connections {
            connection.fs_type = fs_type(&connection.fs_type);
        }
        Self { connections, states, omitted }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Begins a family of gauges.
fn family<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    description: &Description,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    const SECONDS: &Unit = &Unit::Seconds;
    // The registry adds the full stop to its own help texts, but not to a collector's.
    let help = format!("{}.", description.help);
    encoder.encode_descriptor(description.name, &help, description.unit.map(|_| SECONDS), MetricType::Gauge)
}

impl Collector for ConnectionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut states = family(&mut encoder, &describe::CONNECTIONS)?;
        for (state, count) in self.states {
            ConstGauge::new(count).encode(states.encode_family(&[("state", state.as_str())])?)?;
        }
        let mut in_flight = family(&mut encoder, &describe::REQUESTS_IN_FLIGHT)?;
        for (labels, connection) in self.labelled() {
            if let Some(requests) = connection.requests_in_flight {
                let requests = i64::try_from(requests).unwrap_or(i64::MAX);
                ConstGauge::new(requests).encode(in_flight.encode_family(&labels)?)?;
            }
        }
        let mut oldest = family(&mut encoder, &describe::OLDEST_REQUEST)?;
        for (labels, connection) in self.labelled() {
            if let Some(age) = connection.oldest_request {
                ConstGauge::new(seconds(age)).encode(oldest.encode_family(&labels)?)?;
            }
        }
        let omitted = family(&mut encoder, &describe::SERIES_OMITTED)?;
        ConstGauge::new(self.omitted).encode(omitted)
    }
}

impl ConnectionCollector {
    fn labelled(&self) -> impl Iterator<Item = ([(&'static str, String); 2], &ConnectionGauges)> {
        self.connections.iter().map(|connection| {
            let device = connection.connection.device.to_string();
            ([("connection", device), ("fs_type", connection.fs_type.clone())], connection)
        })
    }
}
