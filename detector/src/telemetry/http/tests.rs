//! Over a real socket on loopback. The test plays the owner of the state.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::model::BackendKind;
use crate::telemetry::query::{self, Query};
use crate::telemetry::status::{Gauges, Hook, Loss, Status};

/// Longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
    owner: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(owner) = &self.owner {
            owner.abort();
        }
    }
}

fn status_value() -> Status {
    Status {
        version: "0.1.0",
        backend: Some(BackendKind::Portable),
        healing: HealingMode::NoPrivilege,
        hooks: vec![Hook { name: "pidfd", backend: BackendKind::Portable, attached: true }],
        connections: Vec::new(),
        losses: vec![Loss { stage: "output", reason: "closed", total: 3 }],
    }
}

async fn own(mut queries: mpsc::Receiver<Query>, readiness: Readiness) {
    while let Some(query) = queries.recv().await {
        match query {
            Query::Readiness(reply) => drop(reply.send(readiness.clone())),
            Query::Status(reply) => drop(reply.send(status_value())),
            Query::Gauges(reply) => drop(reply.send(Gauges::default())),
        }
    }
}

/// A server, with the owner's end of the queue.
async fn start_without_owner() -> (Server, mpsc::Receiver<Query>) {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asker, queries) = query::channel();
    let task = tokio::spawn(serve(listener, asker, Metrics::new()));
    (Server { address, task, owner: None }, queries)
}

async fn start(readiness: Readiness) -> Server {
    let (mut server, queries) = start_without_owner().await;
    server.owner = Some(tokio::spawn(own(queries, readiness)));
    server
}

async fn detecting() -> Server {
    start(Readiness::Detecting(BackendKind::Portable, HealingMode::NoPrivilege)).await
}

async fn exchange(server: &Server, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("no answer")
}

/// Status code, head and body.
async fn get_path(server: &Server, path: &str) -> (u16, String, String) {
    let answer = exchange(server, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn metrics_are_openmetrics() {
    let (code, head, body) = get_path(&detecting().await, "/metrics").await;
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.ends_with("# EOF\n") && body.contains("fuse_detector_build_info{version="), "{body}");
}

#[tokio::test]
async fn readiness_is_told_apart_from_life() {
    let server = start(Readiness::NotDetecting("no /proc".into())).await;
    assert_eq!(get_path(&server, "/livez").await.0, 200);
    let (code, _, body) = get_path(&server, "/readyz").await;
    assert_eq!((code, body.as_str()), (503, "no /proc\n"));
    let (code, _, body) = get_path(&detecting().await, "/readyz").await;
    assert_eq!((code, body.as_str()), (200, "ok: detecting by portable; healing is not possible: no privilege\n"));
}

#[tokio::test]
async fn status_is_json() {
    let (code, head, body) = get_path(&detecting().await, "/status").await;
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&body).unwrap(),
        serde_json::json!({
            "version": "0.1.0",
            "backend": "portable",
            "healing": "noPrivilege",
            "hooks": [{"name": "pidfd", "backend": "portable", "attached": true}],
            "connections": [],
            "losses": [{"stage": "output", "reason": "closed", "total": 3}],
        })
    );
}

#[tokio::test]
async fn other_paths_and_methods_are_told_what_there_is() {
    let server = detecting().await;
    let (code, _, body) = get_path(&server, "/metric").await;
    assert_eq!(code, 404);
    assert!(PATHS.iter().all(|(path, _)| body.contains(path)), "{body}");
    let answer = exchange(&server, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test]
async fn an_owner_that_ended_is_not_alive() {
    let (server, queries) = start_without_owner().await;
    drop(queries);
    for path in ["/livez", "/readyz", "/status", "/metrics"] {
        let (code, _, body) = get_path(&server, path).await;
        assert_eq!((code, body.as_str()), (503, "the event loop has ended\n"), "{path}");
    }
}

#[tokio::test]
async fn an_owner_that_is_stuck_is_not_alive() {
    let (server, _queries) = start_without_owner().await;
    let (code, _, body) = get_path(&server, "/livez").await;
    assert_eq!(code, 503);
    assert!(body.contains("did not turn"), "{body}");
}

#[tokio::test]
async fn a_client_that_sends_no_head_is_dropped() {
    let server = detecting().await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nx-slow: ").await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(CONNECTION_TIMEOUT - HEADER_TIMEOUT, slow.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the connection is still open");
}

#[tokio::test]
async fn any_number_of_slow_clients_leaves_a_fast_one_its_answer() {
    let server = detecting().await;
    let mut slow = Vec::new();
    for _ in 0..3 * MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET ").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(get_path(&server, "/livez").await.0, 200);
    // The oldest gave way, long before its time was over.
    let closed = tokio::time::timeout(HEADER_TIMEOUT / 2, slow[0].read_u8()).await;
    assert!(matches!(closed, Ok(Err(_))), "the oldest is still open");
    assert!(
        slow[3 * MAX_CONNECTIONS - 1].try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    );
}

#[tokio::test]
async fn an_address_in_use_is_named_with_what_to_do() {
    let taken = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = taken.local_addr().unwrap();
    let message = bind(address).await.unwrap_err().to_string();
    assert!(message.contains(&address.to_string()) && message.contains("--listen"), "{message}");
}
