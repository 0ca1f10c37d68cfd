"""Subcommands of the laboratory, by name; each is loaded when it is called."""

COMMANDS: dict[str, str] = {
    "reproduce": "torchlift.lab.commands.reproduce:Reproduce",
    "plan": "torchlift.lab.commands.plan:Plan",
    "bench distributed": "torchlift.lab.commands.bench_distributed:BenchDistributed",
    "bench inversion": "torchlift.lab.commands.bench_inversion:BenchInversion",
    "bench layers": "torchlift.lab.benchmarks.layers:BenchLayers",
    "bench league": "torchlift.lab.commands.bench_league:BenchLeague",
    "bench photographs": "torchlift.lab.commands.bench_photographs:BenchPhotographs",
    "bench solvers": "torchlift.lab.benchmarks.solvers:BenchSolvers",
    "bench step": "torchlift.lab.benchmarks.step:BenchStep",
    "bench training": "torchlift.lab.commands.bench_league:BenchTraining",
    "soak": "torchlift.lab.soak.soak:Soak",
}
