# The stages of one-shot methods: warm up, measure distances, cluster.


rule warmup:
    # INPUT   samples and partition
    # OUTPUT  each client's model of its last participation, the common model, the rounds' tables
    input:
        ask.inputs("warmup"),
    output:
        clients=directory(
            "results/{study}/{federation}/seed{seed}/warmup/{warmup}/clients"
        ),
        common="results/{study}/{federation}/seed{seed}/warmup/{warmup}/common.safetensors",
        history="results/{study}/{federation}/seed{seed}/warmup/{warmup}/history.parquet",
        rounds="results/{study}/{federation}/seed{seed}/warmup/{warmup}/rounds.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/warmup/{warmup}.log",
    group:
        requests.group("warmup")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("warmup", 1500),
        runtime=requests.minutes("warmup", 240),
    params:
        settings=ask.settings("warmup"),
        code=ask.code("warmup"),
        digest=ask.digest("warmup"),
    shell:
        """
        clusterfl warmup \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --warmup {wildcards.warmup:q} \\
        --digest {params.digest} --needed \\
        --threads {threads} \\
        2>&1 | tee {log:q}
        """


rule losses:
    # INPUT   samples, partition, the clients' warmed-up models
    # OUTPUT  the losses of a share of these models on every client's data, where a distance has shards
    input:
        ask.inputs("losses"),
    output:
        losses="results/{study}/{federation}/seed{seed}/losses/{distance}/{shard}/losses.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/losses/{distance}.{shard}.log",
    wildcard_constraints:
        shard="[0-9]+",
    group:
        requests.group("losses")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("losses", 1500),
        runtime=requests.minutes("losses", 240),
    params:
        settings=ask.settings("losses"),
        code=ask.code("losses"),
        digest=ask.digest("losses"),
    shell:
        """
        clusterfl losses \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --distance {wildcards.distance:q} \\
        --shard {wildcards.shard:q} \\
        --digest {params.digest} --needed \\
        --threads {threads} \\
        2>&1 | tee {log:q}
        """


rule distance:
    # INPUT   samples, partition, the clients' warmed-up models; or the losses that shards measured
    # OUTPUT  the M x M matrix of one metric
    input:
        ask.inputs("distance"),
    output:
        distance="results/{study}/{federation}/seed{seed}/distance/{distance}.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/distance/{distance}.log",
    group:
        requests.group("distance")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("distance", 1500),
        runtime=requests.minutes("distance", 240),
    params:
        settings=ask.settings("distance"),
        code=ask.code("distance"),
        digest=ask.digest("distance"),
    shell:
        """
        clusterfl distance \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --distance {wildcards.distance:q} \\
        --digest {params.digest} --needed \\
        --threads {threads} \\
        2>&1 | tee {log:q}
        """


rule cluster:
    # INPUT   a distance matrix
    # OUTPUT  each client's cluster; the scores of the numbers of clusters tried
    input:
        ask.inputs("cluster"),
    output:
        clusters="results/{study}/{federation}/seed{seed}/clusters/{clustering}.parquet",
        scores="results/{study}/{federation}/seed{seed}/clusters/{clustering}.scores.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/cluster/{clustering}.log",
    group:
        requests.group("cluster")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("cluster", 1000),
        runtime=requests.minutes("cluster", 30),
    params:
        settings=ask.settings("cluster"),
        code=ask.code("cluster"),
        digest=ask.digest("cluster"),
    shell:
        """
        clusterfl cluster \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --clustering {wildcards.clustering:q} \\
        --digest {params.digest} --needed \\
        2>&1 | tee {log:q}
        """
