"""A stock Ray Serve application as a target, over the HTTP of its cluster. Nothing here needs Ray.

| module | tells or does |
|---|---|
| `ray_serve_target` | `RayServeTarget`: one deployment of one application |
| `dashboard` | the cluster's dashboard: its configuration as JSON, and where its metrics pages are |
| `deployed` | one deployment in what the dashboard tells: its knobs, and what may be tuned |
| `edited_config` | the configuration that `serve deploy` takes, with these knobs set |
| `rollout` | puts a configuration in force, or the one before it back |
| `metrics_text`, `counter_ledger` | the counters of a deployment, which never fall |
| `changed_share` | how much of a deployment nodes took with them or brought back |
| `counters` | a reading, once every process has told what it counted |
"""
