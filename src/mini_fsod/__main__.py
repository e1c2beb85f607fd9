from mini_fsod.cli import main

main()
