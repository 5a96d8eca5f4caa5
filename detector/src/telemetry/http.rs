//! HTTP: `/metrics`, `/livez`, `/readyz`, `/status`.
//!
//! One connection answers one request and lives a few seconds at most, and their number has a limit at which the oldest
//! is closed: clients that dawdle, by fault or on purpose, hold neither memory nor a probe of the kubelet.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::metrics::Metrics;
use super::query::Asker;
use super::status::{HealingMode, Readiness};

/// How many connections are held. Two kubelet probes, two Prometheus servers and a person with curl make five.
pub const MAX_CONNECTIONS: usize = 32;

/// How long a client may take to send its request's head: it fits into one packet.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may last in all. Prometheus gives a scrape 10 s by default (`scrape_timeout`).
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// hyper's smallest buffer is 8 KiB; a request's head is some hundred bytes.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// After a failed accept(2) (no descriptor left, say), how long to leave it alone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// OpenMetrics 1.0, section "Protocol Negotiation".
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is served, with what it tells.
const PATHS: [(&str, &str); 4] = [
    ("/metrics", "metrics, as OpenMetrics text"),
    ("/livez", "200 while the event loop turns"),
    ("/readyz", "200 while detection works"),
    ("/status", "backend, hooks, connections and losses, as JSON"),
];

/// The address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else does.
    #[error(
        "cannot listen on {0}: the address is in use, perhaps by another fuse-detector; \
         choose another with --listen ADDR, or switch HTTP off with --listen off"
    )]
    InUse(SocketAddr),
    /// Anything else.
    #[error("cannot listen on {address}: {error}; choose another address with --listen ADDR, or --listen off")]
    Other {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}

/// Listens on an address.
///
/// # Errors
/// [`BindError`], which names the address and what to do.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        _ => BindError::Other { address, error },
    })
}

#[derive(Clone)]
struct App {
    asker: Asker,
    metrics: Metrics,
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, asker: Asker, metrics: Metrics) {
    let router = router(App { asker, metrics });
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => connections.add(tokio::spawn(answer(stream, router.clone()))),
            Err(error) => {
                tracing::warn!(%error, "HTTP: accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Those that are being answered, oldest first. They end with this value.
#[derive(Debug, Default)]
struct Connections {
    tasks: VecDeque<JoinHandle<()>>,
}

impl Connections {
    fn add(&mut self, task: JoinHandle<()>) {
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= MAX_CONNECTIONS
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        self.tasks.push_back(task);
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "HTTP: connection failed"),
        Err(_) => tracing::debug!("HTTP: connection took too long"),
    }
}

fn router(app: App) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .fallback(unknown)
        .with_state(app)
}

async fn metrics(State(app): State<App>) -> Response {
    let gauges = match app.asker.gauges().await {
        Ok(gauges) => gauges,
        Err(error) => return unavailable(error),
    };
    match app.metrics.encode(gauges) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn livez(State(app): State<App>) -> Response {
    match app.asker.readiness().await {
        Ok(Readiness::Detecting(..) | Readiness::NotDetecting(_)) => "ok\n".into_response(),
        Err(error) => unavailable(error),
    }
}

async fn readyz(State(app): State<App>) -> Response {
    match app.asker.readiness().await {
        Ok(Readiness::Detecting(backend, healing)) => {
            let healing = match healing {
                HealingMode::Off | HealingMode::On => "",
                // It is ready to detect, and no restart would help: no reason to take it out of service.
                HealingMode::NoPrivilege => "; healing is not possible: no privilege",
            };
            format!("ok: detecting by {}{healing}\n", backend.as_str()).into_response()
        }
        Ok(Readiness::NotDetecting(reason)) => unavailable(reason),
        Err(error) => unavailable(error),
    }
}

async fn status(State(app): State<App>) -> Response {
    let status = match app.asker.status().await {
        Ok(status) => status,
        Err(error) => return unavailable(error),
    };
    match serde_json::to_string(&status) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn unknown() -> Response {
    let mut text = String::from("no such path; there are\n");
    for (path, purpose) in PATHS {
        text += &format!("  {path:<10} {purpose}\n");
    }
    (StatusCode::NOT_FOUND, text).into_response()
}

fn unavailable(reason: impl std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests;
